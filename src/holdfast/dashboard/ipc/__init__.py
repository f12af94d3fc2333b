"""How a process offers its snapshot to other processes of its user, and takes requests.

server          the offering side: a socket and its threads
socket_dir      the private folder of sockets where processes find each other
wire            JSON lines over a socket, errors as messages
answers         requests that a process answers
actions         requests that do something: find leaks, free memory, set a budget, stop
client          the asking side: one connection to one process
watching        repeated snapshots of the machine and several processes
"""
