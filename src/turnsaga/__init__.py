"""Durable sagas for agent turns."""
