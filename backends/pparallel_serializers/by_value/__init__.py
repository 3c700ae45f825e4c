"""Functions and classes that the receiver cannot import, sent as what they are made of."""
