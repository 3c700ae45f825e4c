"""What workers tell besides results: logs, warnings, where time goes, what they are doing."""
