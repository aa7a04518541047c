"""Inputs of networks for texts, as all exporters of Hugging Face's models call them."""

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
ORDINARY = {MASK: 1, TYPES: 0}
"""Of those that take but few values, an ordinary one: any other ends some networks."""
