"""Background work on serving models, in the order that `order` states: engines, forms, failover."""
