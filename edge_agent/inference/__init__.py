"""From sample to result: preprocessing, engine, decoder, and the model that combines them."""
