# Shortcuts; the scripts know how. `just` alone lists them.

_list:
    @just --list

# Formatting, lint and types
check:
    scripts/check

# Everything, as CI does; arguments go to pytest
test *arguments:
    scripts/test {{arguments}}

# The quick tier of the tests
quick *arguments:
    scripts/test quick {{arguments}}

# See it run
demo *arguments:
    scripts/demo {{arguments}}
