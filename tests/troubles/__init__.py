"""Troubles injected into a running job, and the table of what its verdicts say of them.

``make troubles`` starts a control plane and a job, injects one trouble after the other, and prints
for each what the verdict was to name, what it said, and whether that was right, wrong or unsure;
first on a quiet host, then with busy loops beside it. It is no test: a row that is wrong is a
finding about the verdict, and some depend on the machine.
"""
