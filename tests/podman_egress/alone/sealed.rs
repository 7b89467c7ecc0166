//! A gateway that is not what was asked for is not used. A wrapper in the place
//! of podman changes one of its flags.

use crate::alone::refusals::refusal;
use crate::podman_common::host;
use crate::world::Internet;
use crate::wrapper::wrap;

#[test]
fn gateway_that_was_tampered_with_is_refused() {
    if !host::qualifies() {
        return;
    }
    let internet = Internet::nobody();
    let volume = "--hostname=umwelt-gateway) keep $word";
    let cases = [
        (
            format!("{volume} --volume=$here/other:/other:ro ;;"),
            "\"/other\" is mounted",
        ),
        (
            format!("{volume} --volume=$here/other:/audit/other ;;"),
            "\"/audit/other\" is mounted",
        ),
        (
            "--mount=*dst=/policy,*) keep_with s/ro=true/rw=true/ ;;".to_owned(),
            "\"/policy\" is writable",
        ),
        ("--cap-drop=all) ;;".to_owned(), "Cap"),
        (
            "--memory-swap=*) keep --memory-swap=600m ;; --memory=*) keep --memory=600m ;;"
                .to_owned(),
            "memory cap",
        ),
    ];
    for (change, words) in cases {
        let mut place = internet.place("");
        wrap(&mut place, "run", &change);
        let said = refusal(&place);
        assert!(
            said.contains("the gateway did not come up"),
            "{change}: {said}"
        );
        assert!(said.contains(words), "{change}: {said}");
    }
}
