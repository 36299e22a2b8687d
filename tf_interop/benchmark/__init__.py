"""Programs with and without a plan, by turns in processes of their own."""
