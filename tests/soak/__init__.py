"""Long runs with crashes, and the checker that judges what was delivered in them."""
