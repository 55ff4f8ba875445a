"""What the theory means for prefill, decode and the link between them."""
