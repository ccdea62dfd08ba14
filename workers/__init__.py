"""Processes of our deployment: worker, development stack, demo."""
