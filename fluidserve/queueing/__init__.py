"""Queueing theory without a word about language models."""
