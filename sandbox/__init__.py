"""Stand-ins for vendors: they speak the vendor's wire and log what really happened."""
