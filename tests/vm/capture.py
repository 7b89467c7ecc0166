# Prints every IP packet on every interface of this network namespace, as long as the file is there
# that is named: the sender's hardware address, protocol, source, destination, port.
import os
import socket
import struct
import sys

sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
# A busy machine comes to read late, and what finds no room is not seen.
SO_RCVBUFFORCE = 33
try:
    sniffer.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
except PermissionError:
    # As much as the machine allows to whoever is not its root.
    sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
print("ready", file=sys.stderr, flush=True)
sniffer.settimeout(0.3)
while True:
    # Then what came before is still printed.
    if not os.path.exists(sys.argv[1]):
        sniffer.setblocking(False)
    try:
        found = sniffer.recvfrom(65535)
    except TimeoutError:
        continue
    except BlockingIOError:
        break
    data, (_, kind, _, _, sender) = found
    if kind == 0x800 and len(data) >= 20:
        rest = data[(data[0] & 15) * 4 :]
        protocol, ends = data[9], [socket.inet_ntoa(data[at : at + 4]) for at in (12, 16)]
    elif kind == 0x86DD and len(data) >= 40:
        rest = data[40:]
        protocol, ends = data[6], [socket.inet_ntop(socket.AF_INET6, data[at : at + 16]) for at in (8, 24)]
    else:
        continue
    port = struct.unpack(">H", rest[2:4])[0] if protocol in (6, 17, 136) and len(rest) >= 4 else 0
    print(sender.hex(":"), protocol, *ends, port, flush=True)
