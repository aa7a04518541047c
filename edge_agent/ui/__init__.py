"""The operator's page, on the operator's machine: the broker's messages, shown in a browser."""
