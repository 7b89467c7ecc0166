//! IP address -> what kind of place it is. Pure.
//!
//! What a name resolves to is the answer of somebody else's server. It must not
//! lead the gateway to the host, its network, or a cloud's metadata service.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address lies, as far as dialling it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressClass {
    Public,
    /// Reached only by a rule that names it, or says `private = true`.
    Private(&'static str),
    /// No connection to it makes sense, whatever a rule says.
    Unusable(&'static str),
}

impl AddressClass {
    /// The class in words.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            AddressClass::Public => "public",
            AddressClass::Private(what) | AddressClass::Unusable(what) => what,
        }
    }

    pub(crate) fn of(address: IpAddr) -> AddressClass {
        match address {
            IpAddr::V4(address) => classify_v4(address),
            IpAddr::V6(address) => classify_v6(address),
        }
    }
}

/// The special blocks of the IANA registry for IPv4; the first match counts.
const V4: [(Ipv4Addr, u32, AddressClass); 19] = {
    use AddressClass::{Private, Unusable};
    [
        (Ipv4Addr::new(0, 0, 0, 0), 8, Unusable("unspecified")),
        (Ipv4Addr::new(10, 0, 0, 0), 8, Private("private")),
        // Alibaba's, in the block below.
        (
            Ipv4Addr::new(100, 100, 100, 200),
            32,
            Private("metadata service"),
        ),
        (
            Ipv4Addr::new(100, 64, 0, 0),
            10,
            Private("carrier-grade NAT"),
        ),
        (Ipv4Addr::new(127, 0, 0, 0), 8, Private("loopback")),
        (
            Ipv4Addr::new(169, 254, 169, 254),
            32,
            Private("metadata service"),
        ),
        // Azure's, with an address of the public kind.
        (
            Ipv4Addr::new(168, 63, 129, 16),
            32,
            Private("metadata service"),
        ),
        (Ipv4Addr::new(169, 254, 0, 0), 16, Private("link-local")),
        (Ipv4Addr::new(172, 16, 0, 0), 12, Private("private")),
        (
            Ipv4Addr::new(192, 0, 0, 0),
            24,
            Private("protocol assignments"),
        ),
        (Ipv4Addr::new(192, 0, 2, 0), 24, Private("documentation")),
        (Ipv4Addr::new(192, 88, 99, 0), 24, Private("6to4 relay")),
        (Ipv4Addr::new(192, 168, 0, 0), 16, Private("private")),
        (Ipv4Addr::new(198, 18, 0, 0), 15, Private("benchmarking")),
        (Ipv4Addr::new(198, 51, 100, 0), 24, Private("documentation")),
        (Ipv4Addr::new(203, 0, 113, 0), 24, Private("documentation")),
        (Ipv4Addr::new(224, 0, 0, 0), 4, Unusable("multicast")),
        (Ipv4Addr::new(255, 255, 255, 255), 32, Unusable("broadcast")),
        (Ipv4Addr::new(240, 0, 0, 0), 4, Private("reserved")),
    ]
};

fn classify_v4(address: Ipv4Addr) -> AddressClass {
    let bits = u32::from(address);
    V4.iter()
        .find(|(block, length, _)| {
            let shift = 32 - length;
            bits >> shift == u32::from(*block) >> shift
        })
        .map_or(AddressClass::Public, |(_, _, class)| *class)
}

fn classify_v6(address: Ipv6Addr) -> AddressClass {
    use AddressClass::{Private, Unusable};
    let s = address.segments();
    match s {
        [0, 0, 0, 0, 0, 0, 0, 0] => Unusable("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Private("loopback"),
        // An IPv4 address in an IPv6 form is what that address is: mapped,
        // compatible, translated (NAT64, RFC 6052 and 2765), tunnelled (6to4).
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        | [0x2002, high, low, ..] => embedded(high, low),
        [0x64, 0xff9b, 1, ..] => Private("local NAT64"),
        [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Private("metadata service"),
        [first, ..] if first & 0xfe00 == 0xfc00 => Private("unique local"),
        [first, ..] if first & 0xffc0 == 0xfe80 => Private("link-local"),
        [first, ..] if first & 0xffc0 == 0xfec0 => Private("site-local"),
        [first, ..] if first & 0xff00 == 0xff00 => Unusable("multicast"),
        [0x2001, second, ..] if second & 0xfe00 == 0 => Private("protocol assignments"),
        [0x2001, 0xdb8, ..] => Private("documentation"),
        [0x3fff, second, ..] if second & 0xf000 == 0 => Private("documentation"),
        [first, ..] if first & 0xe000 == 0x2000 => AddressClass::Public,
        _ => Private("not global"),
    }
}

fn embedded(high: u16, low: u16) -> AddressClass {
    classify_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(text: &str) -> AddressClass {
        AddressClass::of(text.parse().unwrap())
    }

    #[test]
    fn public_addresses_are_public() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1111",
            "2a00:1450::1",
            "2001:4860::8888",
            "64:ff9b::1.1.1.1",
            "::ffff:1.1.1.1",
            "2002:101:101::1",
        ] {
            assert_eq!(class(text), AddressClass::Public, "{text}");
        }
    }

    #[test]
    fn addresses_of_this_host_and_its_networks_are_private() {
        for text in [
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.0.1",
            "169.254.169.254",
            "168.63.129.16",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "240.0.0.1",
            "::1",
            "fc00::1",
            "fdff::1",
            "fd00:ec2::254",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "100::1",
            "2001::1",
            "2001:1ff::1",
            "2001:db8::1",
            "3fff:fff::1",
            "4000::1",
            "64:ff9b:1::1",
            "5f00::1",
        ] {
            assert!(matches!(class(text), AddressClass::Private(_)), "{text}");
        }
    }

    #[test]
    fn ipv4_in_ipv6_forms_is_what_the_ipv4_address_is() {
        for text in [
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "::ffff:0:192.168.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::169.254.169.254",
            "2002:7f00:1::",
            "2002:a00:1::1",
            "2002:c0a8:1::1",
        ] {
            assert!(matches!(class(text), AddressClass::Private(_)), "{text}");
        }
    }

    #[test]
    fn unspecified_multicast_and_broadcast_are_never_usable() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "::",
            "::ffff:0.0.0.0",
            "ff02::1",
            "2002:e000:1::",
        ] {
            assert!(matches!(class(text), AddressClass::Unusable(_)), "{text}");
        }
    }
}
