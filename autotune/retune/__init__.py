"""Re-tuning: the order of a night's steps, and of a promotion's."""
