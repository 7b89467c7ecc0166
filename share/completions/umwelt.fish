# Completions of umwelt for fish, made from the help texts by tests/completions.rs.

complete -c umwelt-mcp -l workspace -r
complete -c umwelt-mcp -l help
complete -c umwelt-mcp -l version

complete -c umwelt-run -l workspace -r
complete -c umwelt-run -l detach
complete -c umwelt-run -l help
complete -c umwelt-run -l version

complete -c umwelt-ctl -f -n __fish_use_subcommand -a 'status stop exec shell list config plan grant revoke trust egress log audit wt help'
complete -c umwelt-ctl -n __fish_use_subcommand -l help
complete -c umwelt-ctl -n __fish_use_subcommand -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from status' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from status' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from status' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from stop' -l all
complete -c umwelt-ctl -n '__fish_seen_subcommand_from stop' -l hard
complete -c umwelt-ctl -n '__fish_seen_subcommand_from stop' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from stop' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from exec' -l cwd -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from exec' -l interactive
complete -c umwelt-ctl -n '__fish_seen_subcommand_from exec' -l tty
complete -c umwelt-ctl -n '__fish_seen_subcommand_from exec' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from exec' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from shell' -l cwd -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from shell' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from shell' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from list' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from list' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from list' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from config' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from config' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from config' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from plan' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from plan' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from plan' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l ro
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l rw
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l file
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l persist
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from grant' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from revoke' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from revoke' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from revoke' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from trust' -l diff
complete -c umwelt-ctl -n '__fish_seen_subcommand_from trust' -l yes
complete -c umwelt-ctl -n '__fish_seen_subcommand_from trust' -l revoke
complete -c umwelt-ctl -n '__fish_seen_subcommand_from trust' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from trust' -l version
complete -c umwelt-ctl -f -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list add remove verify' -a 'list add remove verify'
complete -c umwelt-ctl -f -n '__fish_seen_subcommand_from egress; and __fish_seen_subcommand_from add; and not __fish_seen_subcommand_from https tcp' -a 'https tcp'
complete -c umwelt-ctl -f -n '__fish_seen_subcommand_from egress; and __fish_seen_subcommand_from remove; and not __fish_seen_subcommand_from https tcp' -a 'https tcp'
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list verify' -l port -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list verify' -l path -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list remove verify' -l method -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list remove verify' -l no-inspect
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress; and not __fish_seen_subcommand_from list remove verify' -l private
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from egress' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from log' -l follow
complete -c umwelt-ctl -n '__fish_seen_subcommand_from log' -l lines -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from log' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from log' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from log' -l version
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l follow
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l lines -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l denied
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l summary
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l html -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from audit' -l version
complete -c umwelt-ctl -f -n '__fish_seen_subcommand_from wt; and not __fish_seen_subcommand_from add rm list accept' -a 'add rm list accept'
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt; and not __fish_seen_subcommand_from rm list accept' -l branch -r
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt; and not __fish_seen_subcommand_from add list accept' -l force
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt; and not __fish_seen_subcommand_from add rm accept' -l json
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt; and not __fish_seen_subcommand_from add rm list' -l yes
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from wt' -l version
complete -c umwelt-ctl -f -n '__fish_seen_subcommand_from help; and not __fish_seen_subcommand_from status stop exec shell list config plan grant revoke trust egress log audit wt' -a 'status stop exec shell list config plan grant revoke trust egress log audit wt'
complete -c umwelt-ctl -n '__fish_seen_subcommand_from help' -l help
complete -c umwelt-ctl -n '__fish_seen_subcommand_from help' -l version

complete -c umwelt-nft-hook -l ruleset -r
complete -c umwelt-nft-hook -l digest -r
complete -c umwelt-nft-hook -l nft -r
complete -c umwelt-nft-hook -l read-back
complete -c umwelt-nft-hook -l help
complete -c umwelt-nft-hook -l version

complete -c umwelt-install -f -n __fish_use_subcommand -a 'install status remove image ca client doctor help'
complete -c umwelt-install -n __fish_use_subcommand -l help
complete -c umwelt-install -n __fish_use_subcommand -l version
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l prefix-bin -r
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l no-image
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l image-from -r
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l no-egress
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l egress
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from install' -l version
complete -c umwelt-install -n '__fish_seen_subcommand_from status' -l json
complete -c umwelt-install -n '__fish_seen_subcommand_from status' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from status' -l version
complete -c umwelt-install -n '__fish_seen_subcommand_from remove' -l purge
complete -c umwelt-install -n '__fish_seen_subcommand_from remove' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from remove' -l version
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l with-build
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l packages -r
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l from-packages
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l from -r
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from image' -l version
complete -c umwelt-install -f -n '__fish_seen_subcommand_from ca; and not __fish_seen_subcommand_from rotate' -a 'rotate'
complete -c umwelt-install -n '__fish_seen_subcommand_from ca' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from ca' -l version
complete -c umwelt-install -f -n '__fish_seen_subcommand_from client; and not __fish_seen_subcommand_from opencode claude codex goose vscode generic' -a 'opencode claude codex goose vscode generic'
complete -c umwelt-install -n '__fish_seen_subcommand_from client' -l merge -r
complete -c umwelt-install -n '__fish_seen_subcommand_from client' -l yes
complete -c umwelt-install -n '__fish_seen_subcommand_from client' -l skill
complete -c umwelt-install -n '__fish_seen_subcommand_from client' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from client' -l version
complete -c umwelt-install -n '__fish_seen_subcommand_from doctor' -l json
complete -c umwelt-install -n '__fish_seen_subcommand_from doctor' -l fix-commands
complete -c umwelt-install -n '__fish_seen_subcommand_from doctor' -l quick
complete -c umwelt-install -n '__fish_seen_subcommand_from doctor' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from doctor' -l version
complete -c umwelt-install -f -n '__fish_seen_subcommand_from help; and not __fish_seen_subcommand_from install status remove image ca client doctor' -a 'install status remove image ca client doctor'
complete -c umwelt-install -n '__fish_seen_subcommand_from help' -l help
complete -c umwelt-install -n '__fish_seen_subcommand_from help' -l version

complete -c umwelt-init -l check-egress
complete -c umwelt-init -l help
complete -c umwelt-init -l version

complete -c umwelt-gateway -l policy -r
complete -c umwelt-gateway -l ca-cert -r
complete -c umwelt-gateway -l ca-key -r
complete -c umwelt-gateway -l roots -r
complete -c umwelt-gateway -l audit -r
complete -c umwelt-gateway -l listen -r
complete -c umwelt-gateway -l proxy-port -r
complete -c umwelt-gateway -l socks-port -r
complete -c umwelt-gateway -l dns-port -r
complete -c umwelt-gateway -l resolver -r
complete -c umwelt-gateway -l supervised
complete -c umwelt-gateway -l workspace -r
complete -c umwelt-gateway -l threads -r
complete -c umwelt-gateway -l share-at -r
complete -c umwelt-gateway -l audit-size -r
complete -c umwelt-gateway -l audit-keep -r
complete -c umwelt-gateway -l help
complete -c umwelt-gateway -l version
