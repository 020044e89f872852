"""What `bench` does: the same prompts on a real server with and without speculation, beside the prediction."""
