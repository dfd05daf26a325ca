"""Configuration, backbone, heads and cache that all families share."""
