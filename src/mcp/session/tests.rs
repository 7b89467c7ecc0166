use super::*;
use proptest::prelude::*;

fn session() -> Session {
    Session::new("be careful".to_owned())
}

fn connected() -> Session {
    let mut session = session();
    assert!(feed(&mut session, &initialize("2025-11-25")).len() == 1);
    assert!(session.take_start().is_some());
    session.on_connected(2, State::Ready, None);
    session
}

fn drain(queue: &mut Queue) -> Vec<Value> {
    let mut bytes = Vec::new();
    while !queue.is_empty() {
        let piece = queue.front(usize::MAX).to_vec();
        queue.consume(piece.len());
        bytes.extend(piece);
    }
    let text = String::from_utf8(bytes).unwrap();
    let parse = |line| serde_json::from_str(line).unwrap();
    text.split_terminator('\n').map(parse).collect()
}

fn feed(session: &mut Session, message: &Value) -> Vec<Value> {
    let line = serde_json::to_vec(message).unwrap();
    session.on_line(Line::Complete(line), Instant::now());
    drain(&mut session.output)
}

fn initialize(version: &str) -> Value {
    let params = json!({
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": "init", "method": "initialize", "params": params})
}

fn ping(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "ping"})
}

fn shell(id: u64) -> Value {
    let params = json!({"name": "shell", "arguments": {"command": "ls"}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

fn cancelled(id: u64) -> Value {
    let params = json!({"requestId": id});
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
}

fn reply(session: &mut Session, id: u64) -> Vec<Value> {
    session.on_plane_message(Message {
        id: Some(id),
        body: Body::Result(json!({
            "ended": "exited", "code": 0, "output": "", "bytes": 0, "omitted_bytes": 0,
            "invalid_bytes": 0, "duration_ms": 1, "background": [], "notices": [],
        })),
    });
    drain(&mut session.output)
}

fn is_error(answer: &Value) -> bool {
    answer["result"]["isError"] == true
}

#[test]
fn versions_are_negotiated() {
    for (asked, wanted) in VERSIONS.map(|v| (v, v)).into_iter().chain([
        ("1999-01-01", NEWEST),
        ("2026-07-28", NEWEST),
        ("", NEWEST),
    ]) {
        let answers = feed(&mut session(), &initialize(asked));
        assert_eq!(answers[0]["result"]["protocolVersion"], wanted);
        assert_eq!(answers[0]["result"]["instructions"], "be careful");
    }
    let answers = feed(
        &mut session(),
        &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}),
    );
    assert_eq!(answers[0]["error"]["code"], -32602);
}

#[test]
fn one_start_is_asked_for_with_the_name_of_the_client() {
    let mut session = session();
    assert_eq!(session.take_start(), None);
    feed(&mut session, &initialize(NEWEST));
    let name = concat!("umwelt-mcp/", env!("CARGO_PKG_VERSION"), " (test 1)");
    assert_eq!(session.take_start().as_deref(), Some(name));
    feed(&mut session, &shell(1));
    assert_eq!(session.take_start(), None);
}

#[test]
fn calls_wait_for_the_connection_and_are_sent_in_order() {
    let mut session = session();
    for id in 0..3 {
        assert!(feed(&mut session, &shell(id)).is_empty());
    }
    assert!(session.requests.is_empty());
    session.on_connected(2, State::Starting, None);
    let requests = drain(&mut session.requests);
    let ids: Vec<_> = requests.iter().map(|r| r["id"].as_u64().unwrap()).collect();
    assert_eq!(ids, [2, 3, 4]);
    assert_eq!(reply(&mut session, 3)[0]["id"], 1);
}

#[test]
fn failed_start_answers_all_and_the_next_call_tries_again() {
    let mut session = session();
    feed(&mut session, &shell(0));
    feed(&mut session, &shell(1));
    assert!(session.take_start().is_some());
    let error = ApiError::new(ErrorKind::NoDelegation, "no").with_hint("do this");
    session.on_start_failed(&error);
    let answers = drain(&mut session.output);
    assert_eq!(answers.len(), 2);
    assert!(answers.iter().all(is_error));
    assert_eq!(session.take_start(), None);
    assert!(feed(&mut session, &shell(2)).is_empty());
    assert!(session.take_start().is_some());
}

#[test]
fn lost_control_plane_answers_what_runs_and_the_next_call_starts_anew() {
    let mut session = connected();
    feed(&mut session, &shell(0));
    session.on_plane_lost(&crate::api::client::closed());
    let answers = drain(&mut session.output);
    assert!(is_error(&answers[0]));
    assert!(session.requests.is_empty());
    assert!(reply(&mut session, 2).is_empty());
    feed(&mut session, &shell(1));
    assert!(session.take_start().is_some());
}

#[test]
fn cancelled_call_is_passed_on_and_not_answered() {
    let mut session = connected();
    feed(&mut session, &shell(5));
    drain(&mut session.requests);
    assert!(feed(&mut session, &cancelled(5)).is_empty());
    let request = drain(&mut session.requests).remove(0);
    assert_eq!(request["method"], "cancel");
    assert_eq!(request["params"]["request"], 2);
    assert!(reply(&mut session, 2).is_empty());
    assert!(session.is_idle());
    // The id is free again.
    assert!(feed(&mut session, &shell(5)).is_empty());
}

#[test]
fn cancellation_of_what_does_not_run_is_ignored() {
    let mut session = connected();
    feed(&mut session, &shell(5));
    reply(&mut session, 2);
    drain(&mut session.requests);
    for message in [
        cancelled(5),
        cancelled(6),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled"}),
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": null}}),
    ] {
        assert!(feed(&mut session, &message).is_empty());
        assert!(session.requests.is_empty());
    }
}

#[test]
fn cancelled_call_that_waits_never_reaches_the_control_plane() {
    let mut session = session();
    feed(&mut session, &shell(1));
    feed(&mut session, &cancelled(1));
    session.on_connected(2, State::Ready, None);
    assert!(session.requests.is_empty());
}

#[test]
fn id_in_use_is_refused() {
    let mut session = connected();
    feed(&mut session, &shell(1));
    for again in [shell(1), ping(1)] {
        let answers = feed(&mut session, &again);
        assert_eq!(answers[0]["error"]["code"], -32600);
    }
    assert_eq!(reply(&mut session, 2)[0]["id"], 1);
    assert_eq!(feed(&mut session, &ping(1))[0]["result"], json!({}));
}

#[test]
fn batches_are_for_the_version_that_has_them() {
    let batch = json!([ping(1), ping(2)]);
    for version in VERSIONS {
        let mut session = session();
        assert_eq!(feed(&mut session, &batch)[0]["error"]["code"], -32600);
        feed(&mut session, &initialize(version));
        let answers = feed(&mut session, &batch);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0].is_array(), version == BATCHES, "{version}");
    }
}

#[test]
fn batch_is_answered_when_its_last_call_is() {
    let mut session = session();
    feed(&mut session, &initialize(BATCHES));
    session.on_connected(2, State::Ready, None);
    let batch = json!([
        shell(1),
        7,
        shell(2),
        shell(3),
        cancelled(9),
        initialize(BATCHES)
    ]);
    assert!(feed(&mut session, &batch).is_empty());
    assert!(feed(&mut session, &cancelled(2)).is_empty());
    assert!(reply(&mut session, 4).is_empty());
    let answers = reply(&mut session, 2);
    assert_eq!(answers.len(), 1);
    let ids: Vec<_> = answers[0]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["id"].clone())
        .collect();
    assert_eq!(ids, [json!(null), json!("init"), json!(3), json!(1)]);
    assert!(session.batches.is_empty());
}

#[test]
fn batch_without_anything_to_answer_is_not_answered() {
    let mut session = session();
    feed(&mut session, &initialize(BATCHES));
    session.on_connected(2, State::Ready, None);
    assert!(feed(&mut session, &json!([cancelled(1)])).is_empty());
    assert!(feed(&mut session, &json!([shell(1), cancelled(1)])).is_empty());
    assert!(session.batches.is_empty());
}

#[test]
fn notice_comes_with_the_first_result_of_a_command_only() {
    let mut session = session();
    feed(&mut session, &shell(0));
    feed(&mut session, &shell(1));
    session.on_connected(2, State::Ready, Some("elsewhere".to_owned()));
    let first = reply(&mut session, 2).remove(0);
    assert_eq!(
        first["result"]["structuredContent"]["notices"],
        json!(["elsewhere"])
    );
    let second = reply(&mut session, 3).remove(0);
    assert_eq!(second["result"]["structuredContent"]["notices"], json!([]));
}

#[test]
fn calls_at_once_are_limited_and_the_limit_is_a_result() {
    let mut session = session();
    for id in 0..MAX_CALLS as u64 {
        assert!(feed(&mut session, &shell(id)).is_empty());
    }
    let answers = feed(&mut session, &shell(9999));
    assert!(is_error(&answers[0]));
}

#[test]
fn output_is_streamed_only_for_a_progress_token() {
    let mut session = connected();
    let mut with_token = shell(1);
    with_token["params"]["_meta"] = json!({"progressToken": "t"});
    feed(&mut session, &with_token);
    feed(&mut session, &shell(2));
    let streams: Vec<_> = drain(&mut session.requests)
        .iter()
        .map(|request| request["params"]["stream"].clone())
        .collect();
    assert_eq!(streams, [true, false]);
    for id in [2, 3] {
        session.on_plane_message(Message {
            id: Some(id),
            body: Body::Event(Event::Output {
                text: "hi\n".to_owned(),
                skipped: 0,
            }),
        });
    }
    session.tick(Instant::now());
    let progress = drain(&mut session.output);
    assert_eq!(progress.len(), 1);
    assert_eq!(progress[0]["params"]["progressToken"], "t");
    reply(&mut session, 2);
    assert_eq!(session.next_tick(), None);
}

#[test]
fn progress_is_dropped_while_the_client_does_not_read() {
    let mut session = connected();
    let mut with_token = shell(1);
    with_token["params"]["_meta"] = json!({"progressToken": 0});
    feed(&mut session, &with_token);
    session.output.push(&vec![b' '; MAX_BACKLOG + 1]);
    let before = session.output.len();
    let due = session.next_tick().unwrap();
    session.tick(due);
    assert_eq!(session.output.len(), before);
    assert!(session.next_tick().unwrap() > due);
}

#[test]
fn wrong_progress_token_is_a_wrong_parameter() {
    for token in [json!(1.5), json!([]), json!(true)] {
        let mut message = shell(1);
        message["params"]["_meta"] = json!({"progressToken": token});
        let answers = feed(&mut session(), &message);
        assert_eq!(answers[0]["error"]["code"], -32602);
        assert!(
            answers[0]["error"]["message"]
                .as_str()
                .unwrap()
                .contains("_meta.progressToken")
        );
    }
}

fn message() -> impl Strategy<Value = Value> {
    let id = 0u64..4;
    prop_oneof![
        id.clone().prop_map(shell),
        id.clone().prop_map(ping),
        id.clone().prop_map(cancelled),
        id.prop_map(|id| json!([shell(id), ping(9), cancelled(id)])),
        Just(json!({"jsonrpc": "2.0", "id": 1})),
        Just(json!([1])),
    ]
}

proptest! {
    /// Whatever happens in whatever order, nothing is left over.
    #[test]
    fn every_call_ends(messages in proptest::collection::vec((message(), 0u8..6, 0u64..20), 0..40)) {
        let mut session = session();
        feed(&mut session, &initialize(BATCHES));
        for (message, event, number) in messages {
            feed(&mut session, &message);
            let started = session.take_start().is_some();
            match event {
                0 if started => session.on_start_failed(&crate::api::client::closed()),
                _ if started => session.on_connected(2, State::Ready, None),
                1 if matches!(session.plane, Plane::Connected { .. }) => {
                    session.on_plane_lost(&crate::api::client::closed());
                }
                _ => {
                    reply(&mut session, number);
                }
            }
        }
        session.finish();
        prop_assert!(session.is_idle());
        prop_assert!(session.batches.is_empty());
        drain(&mut session.output);
        drain(&mut session.requests);
    }
}
