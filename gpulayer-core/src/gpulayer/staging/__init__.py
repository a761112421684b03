"""Content on disk: what ships, trees and blobs, work folders, outputs. Used by client, worker and server alike.

``scan`` decides what ships, ``trees`` turns folders into tree objects and reads hostile ones, ``blobs`` keeps
content, ``workfolder`` writes a tree out for a job, ``outputs`` finds what the job made, ``home`` puts that under
``gpulayer_runs/``, and ``packs`` groups blobs for the wire. Everything blocks; callers in an event loop use threads.
Nothing here knows who calls it, reads the environment or prints: warnings are returned as text.
"""
