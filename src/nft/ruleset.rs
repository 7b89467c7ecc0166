//! What a sandbox may reach directly -> the nftables commands that see to it,
//! as JSON for `nft -j -f -`. Pure.
//!
//! Only addresses get here: names are resolved before, once.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};
use std::net::Ipv4Addr;

use nftables::expr::{
    CT, Expression, Meta, MetaKey, NamedExpression, Payload, PayloadField, SetItem,
};
use nftables::schema::{
    Chain, NfCmd, NfListObject, NfObject, Nftables, Rule, Set, SetFlag, SetType, SetTypeValue,
    Table,
};
use nftables::stmt::{
    self, Counter, JumpTarget, Match, Operator, Reject, RejectType, SetOp, Statement,
};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook, RejectCode};
use serde_json::{Value, json};

use super::NftError;

/// The one table; family `inet` covers IPv4 and IPv6.
pub(crate) const TABLE: &str = "umwelt";
/// What was refused, by address, protocol and port, with counters.
pub(crate) const DENIED: [&str; 2] = ["denied4", "denied6"];
/// New direct connections that were let through.
pub(crate) const ALLOWED: &str = "allowed4";
const TARGETS: &str = "targets4";
/// The chain that everything goes to that is not let through.
const REFUSE: &str = "refuse";

/// Most direct targets of one sandbox.
pub(crate) const MAX_TARGETS: usize = 1024;
/// Most entries of a counting set; what does not fit is refused all the same,
/// and counted by the rule that refuses.
pub(crate) const COUNTED: u32 = 4096;
/// Seconds for which an entry is kept after the last packet.
const KEPT: u32 = 3600;

const FAMILY: NfFamily = NfFamily::INet;
/// Protocols with ports where TCP has them, by number: names would depend on
/// the host's /etc/protocols. TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [u32; 5] = [TCP, 17, 33, 132, 136];
const TCP: u32 = 6;

/// The addresses and ports that a sandbox may open connections to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ruleset {
    gateway: Ipv4Addr,
    ports: GatewayPorts,
    targets: BTreeSet<(Ipv4Addr, u16)>,
}

/// Where the gateway listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatewayPorts {
    /// UDP and TCP.
    pub(crate) dns: u16,
    pub(crate) proxy: u16,
    pub(crate) socks: u16,
}

impl Ruleset {
    /// `targets` are the direct TCP rules with their names resolved.
    pub(crate) fn new(
        gateway: Ipv4Addr,
        ports: GatewayPorts,
        targets: impl IntoIterator<Item = (Ipv4Addr, u16)>,
    ) -> Result<Ruleset, NftError> {
        let wrong = |why: String| Err(NftError::Ruleset(why));
        if !is_host(gateway) {
            return wrong(format!("{gateway} cannot be the gateway's address"));
        }
        if [ports.dns, ports.proxy, ports.socks].contains(&0) {
            return wrong("a port of the gateway is 0".to_owned());
        }
        let targets: BTreeSet<_> = targets.into_iter().collect();
        if targets.len() > MAX_TARGETS {
            return wrong(format!(
                "{} direct targets are more than {MAX_TARGETS}",
                targets.len()
            ));
        }
        for (address, port) in &targets {
            if !is_host(*address) || *port == 0 {
                return wrong(format!("{address}:{port} cannot be a direct target"));
            }
            // Its other ports, and the proxy past its policy.
            if *address == gateway {
                return wrong(format!("the direct target {address}:{port} is the gateway"));
            }
        }
        Ok(Ruleset {
            gateway,
            ports,
            targets,
        })
    }

    pub(crate) fn targets(&self) -> &BTreeSet<(Ipv4Addr, u16)> {
        &self.targets
    }

    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }

    pub(crate) fn is_gateway_port(&self, port: u16) -> bool {
        [self.ports.dns, self.ports.proxy, self.ports.socks].contains(&port)
    }

    /// The text for nft. The same ruleset always gives the same text.
    pub(crate) fn render(&self) -> Result<String, NftError> {
        let mut objects = vec![NfObject::CmdObject(NfCmd::Create(NfListObject::Table(
            Table {
                family: FAMILY,
                name: TABLE.into(),
                handle: None,
            },
        )))];
        let sets = [
            (DENIED[0], SetType::Ipv4Addr),
            (DENIED[1], SetType::Ipv6Addr),
            (ALLOWED, SetType::Ipv4Addr),
        ];
        objects.extend(sets.map(|(name, address)| add(counting_set(name, address))));
        objects.push(add(self.target_set()));
        objects.push(add(base_chain("input", NfHook::Input)));
        objects.push(add(base_chain("forward", NfHook::Forward)));
        objects.push(add(base_chain("output", NfHook::Output)));
        objects.push(add(NfListObject::Chain(chain(REFUSE))));
        objects.extend(input_rules().map(|statements| add(rule("input", statements))));
        objects.extend(refuse_rules().map(|statements| add(rule(REFUSE, statements))));
        let output = self.output_rules().into_iter();
        objects.extend(output.map(|statements| add(rule("output", statements))));
        let commands = Nftables {
            objects: objects.into(),
        };
        let failed = |error: serde_json::Error| NftError::Ruleset(error.to_string());
        let mut value = serde_json::to_value(&commands).map_err(failed)?;
        Ok(one_a_line(&mut value))
    }

    fn target_set(&self) -> NfListObject<'static> {
        let element = |(address, port): &(Ipv4Addr, u16)| {
            concat(vec![
                Expression::String(address.to_string().into()),
                Expression::Number(u32::from(*port)),
            ])
        };
        let elements: Vec<_> = self.targets.iter().map(element).collect();
        NfListObject::Set(Box::new(Set {
            family: FAMILY,
            table: TABLE.into(),
            name: TARGETS.into(),
            set_type: concatenated(&[SetType::Ipv4Addr, SetType::InetService]),
            // nft lists an empty set without the key.
            elem: (!elements.is_empty()).then(|| elements.into()),
            ..Set::default()
        }))
    }

    /// First match wins; what comes to the end is refused.
    fn output_rules(&self) -> Vec<Vec<Statement<'static>>> {
        let gateway = || is(payload("ip", "daddr"), text(&self.gateway.to_string()));
        let port = |protocol, port: u16| {
            let port = Expression::Number(u32::from(port));
            vec![gateway(), is(payload(protocol, "dport"), port), accept()]
        };
        let to_target = || {
            let key = concat(vec![payload("ip", "daddr"), payload("tcp", "dport")]);
            is(key, text(&format!("@{TARGETS}")))
        };
        vec![
            vec![is(meta(MetaKey::Oifname), text("lo")), accept()],
            vec![has_options(), refuse()],
            is_answer(),
            port("udp", self.ports.dns),
            port("tcp", self.ports.dns),
            port("tcp", self.ports.proxy),
            port("tcp", self.ports.socks),
            // Counting stands apart from the verdict: a rule ends where its
            // set is full.
            vec![to_target(), count("ip", ("tcp", "dport"), ALLOWED)],
            vec![to_target(), accept()],
            vec![refuse()],
        ]
    }
}

/// Counts, and answers so that a client fails at once.
fn refuse_rules() -> [Vec<Statement<'static>>; 6] {
    let all = Statement::Counter(Counter::Anonymous(None));
    let is_tcp = is(meta(MetaKey::L4proto), Expression::Number(TCP));
    let code = Some(RejectCode::AdminProhibited);
    [
        vec![has_ports(), count("ip", ("th", "dport"), DENIED[0])],
        vec![has_ports(), count("ip6", ("th", "dport"), DENIED[1])],
        // No ports there: type and code, which come first, as one number.
        vec![is_echo("icmp"), count("ip", ("th", "sport"), DENIED[0])],
        vec![is_echo("icmpv6"), count("ip6", ("th", "sport"), DENIED[1])],
        vec![is_tcp, all.clone(), reject(RejectType::TCPReset, None)],
        vec![all, reject(RejectType::ICMPX, code)],
    ]
}

/// Nothing new comes in: on the sandbox's network there are others.
fn input_rules() -> [Vec<Statement<'static>>; 2] {
    [
        // Refusals come in here too, as answers to the sandbox from itself.
        vec![is(meta(MetaKey::Iifname), text("lo")), accept()],
        is_answer(),
    ]
}

/// An address that one machine can have. Loopback is open anyway.
fn is_host(address: Ipv4Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_broadcast())
}

fn add(object: NfListObject<'static>) -> NfObject<'static> {
    NfObject::CmdObject(NfCmd::Add(object))
}

fn base_chain(name: &'static str, hook: NfHook) -> NfListObject<'static> {
    NfListObject::Chain(Chain {
        _type: Some(NfChainType::Filter),
        hook: Some(hook),
        prio: Some(0),
        policy: Some(NfChainPolicy::Drop),
        ..chain(name)
    })
}

/// One that others lead to.
fn chain(name: &'static str) -> Chain<'static> {
    Chain {
        family: FAMILY,
        table: TABLE.into(),
        name: name.into(),
        ..Chain::default()
    }
}

fn rule(chain: &'static str, statements: Vec<Statement<'static>>) -> NfListObject<'static> {
    NfListObject::Rule(Rule {
        family: FAMILY,
        table: TABLE.into(),
        chain: chain.into(),
        expr: statements.into(),
        ..Rule::default()
    })
}

/// A bounded set that rules fill. It is dynamic without saying so: nft before
/// 1.0.7 knows no such flag in JSON, and sets it where a rule fills the set.
fn counting_set(name: &'static str, address: SetType) -> NfListObject<'static> {
    NfListObject::Set(Box::new(Set {
        family: FAMILY,
        table: TABLE.into(),
        name: name.into(),
        set_type: concatenated(&[address, SetType::InetProto, SetType::InetService]),
        flags: Some(HashSet::from([SetFlag::Timeout])),
        timeout: Some(KEPT),
        size: Some(COUNTED),
        ..Set::default()
    }))
}

/// The commands as text, after what the crate's `Set` has no field for: a
/// counter for each element.
fn one_a_line(commands: &mut Value) -> String {
    let objects = commands.get_mut("nftables").and_then(Value::as_array_mut);
    let mut lines = Vec::new();
    for object in objects.into_iter().flatten() {
        let set = object.get_mut("add").and_then(|added| added.get_mut("set"));
        if let Some(set) = set.and_then(Value::as_object_mut)
            && set.contains_key("timeout")
        {
            set.insert("stmt".to_owned(), json!([{ "counter": null }]));
        }
        lines.push(object.to_string());
    }
    format!("{{\"nftables\":[\n{}\n]}}\n", lines.join(",\n"))
}

fn concatenated(types: &[SetType]) -> SetTypeValue<'static> {
    SetTypeValue::Concatenated(Cow::Owned(types.to_vec()))
}

// ---- statements ----

fn is(left: Expression<'static>, right: Expression<'static>) -> Statement<'static> {
    Statement::Match(Match {
        left,
        right,
        op: Operator::EQ,
    })
}

/// IPv4 options, which a process may set on any connection: with a source route
/// the address in the header is not where a packet goes in the end.
fn has_options() -> Statement<'static> {
    Statement::Match(Match {
        left: payload("ip", "hdrlength"),
        // In words of four bytes, without any option.
        right: Expression::Number(5),
        op: Operator::NEQ,
    })
}

fn refuse() -> Statement<'static> {
    Statement::Goto(JumpTarget {
        target: REFUSE.into(),
    })
}

/// Belongs to a connection that was let through.
fn is_answer() -> Vec<Statement<'static>> {
    let state = Expression::Named(NamedExpression::CT(CT {
        key: "state".into(),
        family: None,
        dir: None,
    }));
    let known = Match {
        left: state,
        right: Expression::List(vec![text("established"), text("related")]),
        op: Operator::IN,
    };
    vec![Statement::Match(known), accept()]
}

fn has_ports() -> Statement<'static> {
    let numbers = WITH_PORTS.map(|number| SetItem::Element(Expression::Number(number)));
    is(
        meta(MetaKey::L4proto),
        Expression::Named(NamedExpression::Set(numbers.to_vec())),
    )
}

/// The only ICMP that a process without privileges can send.
fn is_echo(protocol: &'static str) -> Statement<'static> {
    is(payload(protocol, "type"), text("echo-request"))
}

fn accept() -> Statement<'static> {
    Statement::Accept(None)
}

fn reject(kind: RejectType, code: Option<RejectCode>) -> Statement<'static> {
    Statement::Reject(Some(Reject::new(Some(kind), code)))
}

/// Notes address, protocol and a 16-bit field of the transport header.
fn count(
    family: &'static str,
    (header, field): (&'static str, &'static str),
    set: &'static str,
) -> Statement<'static> {
    let key = vec![
        payload(family, "daddr"),
        meta(MetaKey::L4proto),
        payload(header, field),
    ];
    Statement::Set(stmt::Set {
        op: SetOp::Update,
        elem: concat(key),
        set: format!("@{set}").into(),
    })
}

// ---- expressions ----

fn text(text: &str) -> Expression<'static> {
    Expression::String(text.to_owned().into())
}

fn meta(key: MetaKey) -> Expression<'static> {
    Expression::Named(NamedExpression::Meta(Meta { key }))
}

fn payload(protocol: &'static str, field: &'static str) -> Expression<'static> {
    let field = PayloadField {
        protocol: protocol.into(),
        field: field.into(),
    };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn concat(parts: Vec<Expression<'static>>) -> Expression<'static> {
    Expression::Named(NamedExpression::Concat(parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::golden;

    fn ports() -> GatewayPorts {
        GatewayPorts {
            dns: 53,
            proxy: 3128,
            socks: 1080,
        }
    }

    fn ruleset(targets: &[(Ipv4Addr, u16)]) -> Result<Ruleset, NftError> {
        let gateway = Ipv4Addr::new(192, 0, 2, 1);
        Ruleset::new(gateway, ports(), targets.iter().copied())
    }

    fn target(last: u8, port: u16) -> (Ipv4Addr, u16) {
        (Ipv4Addr::new(203, 0, 113, last), port)
    }

    #[test]
    fn rendered_text_is_what_the_golden_files_say() {
        let cases = [
            ("gateway-only", ruleset(&[])),
            ("one-target", ruleset(&[target(7, 22)])),
            // Given twice and out of order.
            (
                "targets",
                ruleset(&[
                    target(9, 5432),
                    target(7, 22),
                    target(7, 2222),
                    target(7, 22),
                ]),
            ),
        ];
        for (name, ruleset) in cases {
            golden::compare(&format!("{name}.json"), &ruleset.unwrap().render().unwrap());
        }
    }

    #[test]
    fn the_gateway_is_no_direct_target() {
        let error = ruleset(&[(Ipv4Addr::new(192, 0, 2, 1), 8443)]).unwrap_err();
        assert!(error.to_string().contains("192.0.2.1:8443"), "{error}");
    }

    #[test]
    fn addresses_of_no_single_machine_are_refused() {
        for address in ["0.0.0.0", "127.0.0.1", "224.0.0.251", "255.255.255.255"] {
            let address: Ipv4Addr = address.parse().unwrap();
            assert!(ruleset(&[(address, 80)]).is_err(), "{address}");
            assert!(Ruleset::new(address, ports(), []).is_err(), "{address}");
        }
        assert!(ruleset(&[target(7, 0)]).is_err());
        let no_dns = GatewayPorts { dns: 0, ..ports() };
        assert!(Ruleset::new(Ipv4Addr::new(192, 0, 2, 1), no_dns, []).is_err());
    }

    #[test]
    fn targets_are_bounded() {
        let targets =
            |count: usize| (1..=count).map(|port| target(7, u16::try_from(port).unwrap()));
        let gateway = Ipv4Addr::new(192, 0, 2, 1);
        assert!(Ruleset::new(gateway, ports(), targets(MAX_TARGETS)).is_ok());
        assert!(Ruleset::new(gateway, ports(), targets(MAX_TARGETS + 1)).is_err());
    }
}
