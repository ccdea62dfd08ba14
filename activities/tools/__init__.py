"""The tools of our deployment, one module a vendor."""
