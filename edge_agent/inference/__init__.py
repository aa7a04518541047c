"""From a sample to a result: preprocessing, engine, decoder, and the model that holds them."""
