"""How processes of our deployment are told what to do: what several read, and how each reads it."""
