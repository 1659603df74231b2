"""What several tests need: each helper once."""
