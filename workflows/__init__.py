"""The workflows of our deployment."""
