"""Backends with one fault each, and the tests of the shipped suites that must reject them."""
