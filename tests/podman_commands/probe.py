"""Tries what a sandbox must refuse; prints one JSON object: probe -> errno
name, "ok", or what was found."""

import ctypes
import errno
import json
import os
import socket

libc = ctypes.CDLL(None, use_errno=True)
results = {}


def call(name, number, *args):
    """A system call by its number on x86-64."""
    ctypes.set_errno(0)
    converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = libc.syscall(ctypes.c_long(number), *converted)
    code = ctypes.get_errno()
    results[name] = "ok" if result >= 0 else errno.errorcode.get(code, str(code))
    return result


def forked(name, function):
    """The same in a child, for what would change this process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            function()
            text = "ok"
        except OSError as error:
            text = errno.errorcode.get(error.errno, str(error.errno))
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    results[name] = os.read(reader, 100).decode()
    os.waitpid(pid, 0)


def attempt(name, function):
    try:
        found = function()
        results[name] = "ok" if found is None else found
    except OSError as error:
        results[name] = errno.errorcode.get(error.errno, str(error.errno))


def raw(number, *args):
    def run():
        ctypes.set_errno(0)
        converted = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
        if libc.syscall(ctypes.c_long(number), *converted) < 0:
            raise OSError(ctypes.get_errno(), "")
    return run


NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
buffer = ctypes.create_string_buffer(256)

# New namespaces, and other ones.
for flag, name in [(NEWUSER, "user"), (NEWUSER | NEWNS, "user_mnt"), (NEWNS, "mnt"), (NEWNET, "net"), (NEWPID, "pid")]:
    forked("unshare_" + name, raw(272, flag))


def clone(flags):
    def run():
        ctypes.set_errno(0)
        pid = libc.syscall(ctypes.c_long(56), ctypes.c_long(flags | 17), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0))
        if pid == 0:
            os._exit(0)
        if pid < 0:
            raise OSError(ctypes.get_errno(), "")
        os.waitpid(pid, 0)
    return run


forked("clone_plain", clone(0))
forked("clone_user", clone(NEWUSER))
forked("clone_user_high_bits", clone(NEWUSER | 1 << 40))
call("clone3", 435, ctypes.byref(buffer), 88)
for name in ["user", "mnt", "net", "pid", "cgroup"]:
    namespace = os.open("/proc/self/ns/" + name, os.O_RDONLY)
    call("setns_" + name, 308, namespace, 0)
call("setns_pidfd", 308, os.pidfd_open(1), NEWNS)

# Kernel interfaces with a history.
for name, number, *args in [
    ("keyctl", 250, 1, 0), ("add_key", 248, 0, 0, 0, 0, 0), ("request_key", 249, 0, 0, 0, 0),
    ("io_uring_setup", 425, 1, ctypes.byref(buffer)), ("io_uring_enter", 426, 0, 0, 0, 0, 0),
    ("io_uring_register", 427, 0, 0, 0, 0), ("bpf", 321, 0, ctypes.byref(buffer), 72),
    ("userfaultfd", 323, 0), ("perf_event_open", 298, ctypes.byref(buffer), 0, -1, -1, 0),
    ("open_by_handle_at", 304, -100, ctypes.byref(buffer), 0), ("name_to_handle_at", 303, -100, b"/", ctypes.byref(buffer), ctypes.byref(buffer), 0),
    ("mount", 165, b"none", b"/tmp", b"tmpfs", 0, 0), ("mount_bind", 165, b"/", b"/tmp", 0, 4096, 0),
    ("umount2", 166, b"/tmp", 2), ("pivot_root", 155, b"/tmp", b"/tmp"),
    ("fsopen", 430, b"tmpfs", 0), ("fsmount", 432, 0, 0, 0), ("open_tree", 428, -100, b"/", 1),
    ("move_mount", 429, -100, b"/tmp", -100, b"/tmp", 0), ("mount_setattr", 442, -100, b"/", 0, ctypes.byref(buffer), 32),
    ("init_module", 175, 0, 0, b""), ("finit_module", 313, 0, b"", 0), ("delete_module", 176, b"x", 0),
    ("kexec_load", 246, 0, 0, 0, 0), ("reboot", 169, 0xFEE1DEAD, 672274793, 0), ("swapon", 167, b"/tmp/x", 0),
    ("acct", 163, 0), ("settimeofday", 164, ctypes.byref(buffer), 0), ("sethostname", 170, b"x", 1),
    ("chroot", 161, b"/tmp"), ("iopl", 172, 3), ("quotactl", 179, 0, 0, 0, 0), ("syslog", 103, 3, ctypes.byref(buffer), 10),
    ("fanotify_init", 300, 0x200, 0), ("modify_ldt", 154, 0, ctypes.byref(buffer), 16),
    ("setuid_root", 105, 0), ("setgid_root", 106, 0), ("setgroups", 116, 0, 0), ("capset", 126, 0, 0),
    ("mknod_device", 133, b"/tmp/device", 0o20666, 0x103),
]:
    call(name, number, *args)

# pid 1 is not to be looked into or changed.
forked("ptrace_attach", raw(101, 16, 1, 0, 0))
forked("ptrace_seize", raw(101, 0x4206, 1, 0, 0))
call("process_vm_readv", 310, 1, 0, 0, 0, 0, 0)
vector = (ctypes.c_long * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_long * 2)(0x400000, 8)
call("process_vm_readv_one", 310, 1, vector, 1, remote, 1, 0)
call("process_vm_writev_one", 311, 1, vector, 1, remote, 1, 0)
call("pidfd_getfd", 438, os.pidfd_open(1), 3, 0)
call("kcmp", 312, 1, os.getpid(), 0, 3, 0)
for name in ["environ", "mem", "maps", "auxv", "stack", "syscall", "io", "pagemap"]:
    attempt("open_1_" + name, lambda: os.close(os.open("/proc/1/" + name, os.O_RDONLY)))
attempt("read_1_environ", lambda: open("/proc/1/environ", "rb").read().decode() or None)
attempt("write_1_mem", lambda: os.close(os.open("/proc/1/mem", os.O_RDWR)))
attempt("write_1_oom", lambda: os.close(os.open("/proc/1/oom_score_adj", os.O_WRONLY)))
attempt("list_1_fd", lambda: len(os.listdir("/proc/1/fd")))
attempt("list_1_map_files", lambda: len(os.listdir("/proc/1/map_files")))
for name in ["exe", "cwd", "root", "fd/3"]:
    attempt("readlink_1_" + name, lambda: os.readlink("/proc/1/" + name))
# What only the owner's id is asked for.
rlimit = (ctypes.c_ulong * 2)(3, 3)
call("prlimit_1_nofile", 302, 1, 7, rlimit, 0)
call("prlimit_self", 302, 0, 7, 0, rlimit)

# Sockets.
for name, family, kind, protocol in [
    ("unix", 1, 1, 0), ("inet", 2, 1, 0), ("inet6", 10, 2, 0), ("netlink_route", 16, 3, 0),
    ("vsock", 40, 1, 0), ("packet", 17, 3, 0), ("alg", 38, 5, 0), ("key", 15, 3, 2), ("can", 29, 3, 1),
    ("tipc", 30, 2, 0), ("rds", 21, 5, 0), ("bluetooth", 31, 5, 0), ("xdp", 44, 3, 0), ("smc", 43, 1, 0),
    ("netlink_audit", 16, 3, 9), ("netlink_netfilter", 16, 3, 12), ("netlink_uevent", 16, 3, 15),
    ("netlink_generic", 16, 3, 16), ("raw", 2, 3, 1), ("raw6", 10, 3, 58), ("qipcrtr", 42, 2, 0), ("ax25", 3, 5, 0),
]:
    attempt("socket_" + name, lambda: socket.socket(family, kind, protocol).close())
call("socket_vsock_high_bits", 41, 40 | 1 << 32, 1, 0)
call("socketpair_vsock", 53, 40, 1, 0, ctypes.byref(buffer))
call("socketpair_inet", 53, 2, 1, 0, ctypes.byref(buffer))
call("socketpair_unix", 53, 1, 1, 0, ctypes.byref(buffer))

# Where nothing is to be written.
for path in ["/x", "/usr/x", "/etc/x", "/run/x", "/var/x", "/dev/x", "/opt/x", "/root/x", "/run/umwelt/x", "/run/umwelt/output/x",
             "/sys/fs/cgroup/x", "/proc/x", "/home/x"]:
    attempt("create " + path, lambda: os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)))
for path in ["/run/umwelt/umwelt-init", "/etc/hosts", "/etc/passwd", "/etc/group", "/etc/hostname", "/etc/resolv.conf", "/proc/sys/kernel/hostname",
             "/proc/sys/kernel/core_pattern", "/proc/sys/net/ipv4/ip_forward", "/proc/sysrq-trigger", "/sys/fs/cgroup/cgroup.procs",
             "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max", "/sys/kernel/profiling", "/run/.containerenv", "/proc/self/uid_map"]:
    attempt("write " + path, lambda: os.close(os.open(path, os.O_WRONLY)))
for path in ["/run/umwelt/umwelt-init", "/etc/hosts", "/run/umwelt"]:
    attempt("rename " + path, lambda: os.rename(path, path + "x"))
    attempt("chmod " + path, lambda: os.chmod(path, 0o777))
attempt("unlink init", lambda: os.unlink("/run/umwelt/umwelt-init"))
attempt("mkdir cgroup", lambda: os.mkdir("/sys/fs/cgroup/mine"))
for path in ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/acpi", "/sys/firmware"]:
    attempt("masked " + path, lambda: (os.listdir(path) if os.path.isdir(path) else list(open(path, "rb").read(10))) or None)

# The network.
for address, port in [("1.1.1.1", 53), ("10.0.2.2", 22), ("169.254.169.254", 80), ("255.255.255.255", 1)]:
    attempt("connect " + address, lambda: socket.socket().connect((address, port)))
attempt("connect 6", lambda: socket.socket(socket.AF_INET6).connect(("2606:4700:4700::1111", 53)))
attempt("send udp", lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53)) and None)
results["interfaces"] = [name for _, name in socket.if_nameindex()]
results["routes"] = open("/proc/net/route").read().splitlines()[1:]


def local():
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    client = socket.create_connection(server.getsockname(), 5)
    client.send(b"x")
    assert server.accept()[0].recv(1) == b"x"


attempt("loopback", local)
results["unix_sockets"] = [line.split()[7] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]

# Who and where this is.
results["ids"] = [os.getresuid(), os.getresgid(), os.getgroups()]
results["status"] = dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)
results["cgroup"] = open("/proc/self/cgroup").read()
results["memory.max"] = open("/sys/fs/cgroup/memory.max").read()
results["pids.max"] = open("/sys/fs/cgroup/pids.max").read()
results["hosts"] = open("/etc/hosts").read()
results["hostname"] = socket.gethostname()
results["mountinfo"] = open("/proc/self/mountinfo").read()
results["processes"] = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
results["home"] = os.listdir("/home")
results["run"] = sorted(os.listdir("/run"))
results["dev"] = sorted(os.listdir("/dev"))
print(json.dumps(results))
