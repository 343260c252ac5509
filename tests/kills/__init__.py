"""Kill brokers, members and producers, and check what survives: one harness with a scenario for each kind.

python -m tests.kills --minutes 10          # all scenarios in turn, another seed in each round
python -m tests.kills retries --seed 7      # one run of one; --help lists its options
"""
