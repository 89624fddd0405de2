"""Evidence about a candidate version beside the live one, by always-valid sequential tests.

Counts of traffic come in (`Evidence`, one in each process, merged exactly), and limits (`Guards`).
A `Verdict` goes out: roll back, promote, or undecided and why. No I/O and no clock.
"""
