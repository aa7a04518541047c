"""The operator's page, on the operator's machine: messages from the broker in a browser."""
