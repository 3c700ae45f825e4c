"""The launcher on torch's elastic agent."""
