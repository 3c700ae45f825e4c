"""What backends share, each written once: identity, RPC, streams, events, remote errors."""
