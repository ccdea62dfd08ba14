"""The web tier of our deployment: the HTTP API over ``turnsaga``'s client and ledger."""
