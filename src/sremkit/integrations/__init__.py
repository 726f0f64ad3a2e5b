"""SREM behind the loss contracts of other libraries, one file each (docs/integrations.md)."""
