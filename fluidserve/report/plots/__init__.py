"""Pictures of an answer; matplotlib is loaded only when one is drawn."""
