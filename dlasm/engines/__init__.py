"""Engines that extend a packed partition."""
