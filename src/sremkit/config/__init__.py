"""Recipes, their settings, and how both are read."""
