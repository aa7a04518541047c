"""`edge-agent bench infer`."""
