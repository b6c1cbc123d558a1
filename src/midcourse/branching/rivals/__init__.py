"""The rules of the methods that RAIL is compared with: where and how often they branch, how hot, how many rollouts."""
