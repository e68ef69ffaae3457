"""remote: agents on other machines: the local proxy of one, and the origin's answers to its requests.

May import: base, broker, budget, tape, providers, files, archive, staging, mount, agent, jobs, deploy, transport.
"""
