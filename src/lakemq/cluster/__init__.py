"""What brokers agree on: topics, apps, policies; who gets which partition."""
