"""What a model is: configuration, weights, tokenizer data and the torch decoder."""
