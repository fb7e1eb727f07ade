"""``sas completion``: a script with which a shell completes verbs, options and their choices."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from sas.cli import arguments as args
from sas.cli import output
from sas.cli.arguments import Verb
from sas.codec.record import to_line

DESCRIPTION = """\
Print a script for your shell. It completes verbs, options, and what an option can be. Make it again
after an update.

  source <(sas completion bash)                 # in ~/.bashrc
  source <(sas completion zsh)                  # in ~/.zshrc, after compinit
  sas completion fish | source                  # in ~/.config/fish/config.fish
"""


@dataclass(frozen=True, slots=True)
class Words:
    """What can follow a verb: options, the choices of each, and the words of an action.

    ``taking`` are the options that take a text.
    """

    verb: str
    summary: str
    options: Sequence[tuple[str, str]]
    choices: Sequence[tuple[str, Sequence[str]]]
    actions: Sequence[str]
    taking: Sequence[str]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=sorted(_SCRIPTS), help="the shell")
    args.add_json(parser, "the script as one JSON object")


def _run(arguments: argparse.Namespace) -> int:
    script = _SCRIPTS[arguments.shell](words_of(arguments.parser))
    if arguments.json:
        output.say(to_line({"Shell": arguments.shell, "Script": script}))
    else:
        output.say(script.rstrip("\n"))
    return 0


def words_of(parser: argparse.ArgumentParser) -> list[Words]:
    """Return what can follow each verb of a parser."""
    (verbs,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))  # noqa: SLF001  argparse shows them nowhere else
    said = {one.dest: one.help or "" for one in verbs._choices_actions}  # noqa: SLF001
    return [_words(name, said.get(name, ""), own) for name, own in verbs.choices.items()]


def _words(verb: str, summary: str, parser: argparse.ArgumentParser) -> Words:
    every = parser._actions  # noqa: SLF001
    options = [
        (name, (one.help or "").partition(" (")[0])
        for one in every
        for name in one.option_strings
        if name.startswith("--")
    ]
    with_choices = [one for one in every if one.choices]
    choices = [(one.option_strings[-1], _texts(one)) for one in with_choices if one.option_strings]
    actions = [text for one in with_choices if not one.option_strings for text in _texts(one)]
    taking = [one.option_strings[-1] for one in every if one.option_strings and one.nargs != 0]
    return Words(verb, summary, options, choices, actions, taking)


def _texts(action: argparse.Action) -> list[str]:
    return [str(one) for one in action.choices or ()]


_PROFILES = r"""sas env list --json 2>/dev/null | sed 's/.*"Environment":"\([^"]*\)".*/\1/'"""
"""A command of the shell that prints the name of each profile: they differ by directory."""


def _bash(words: Sequence[Words]) -> str:
    return f"""\
_sas() {{
    local cur="${{COMP_WORDS[COMP_CWORD]}}" words="" verb="" i
    if [ "${{COMP_WORDS[COMP_CWORD-1]}}" = --env ]; then
        COMPREPLY=($(compgen -W "$({_PROFILES})" -- "$cur"))
        return
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in
            --env) ((i++)) ;;
            -*) ;;
            *) verb="${{COMP_WORDS[i]}}"; break ;;
        esac
    done
    if [ -z "$verb" ]; then
        words={shlex.quote(" ".join(one.verb for one in words))}
    else
        case "$verb ${{COMP_WORDS[COMP_CWORD-1]}}" in
{_cases(words, "words")}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o default -F _sas sas
"""


def _cases(words: Sequence[Words], variable: str) -> str:
    """Return the branches of a case over "verb word-before" that set a variable."""
    lines: list[str] = []
    for one in words:
        of_options = dict(one.choices)
        first = [*one.actions, *(name for name, _ in one.options)]
        branches = [(f"'{one.verb} {name}'", of_options.get(name, ())) for name in one.taking]
        for pattern, found in [*branches, (f"'{one.verb} '*", first)]:
            lines.append(f"            {pattern}) {variable}={shlex.quote(' '.join(found))} ;;")
    return "\n".join(lines)


def _zsh(words: Sequence[Words]) -> str:
    verbs = "\n".join(f"            {shlex.quote(f'{one.verb}:{one.summary}')}" for one in words)
    return f"""\
#compdef sas
_sas() {{
    local before="${{words[CURRENT-1]}}" verb="" said="" i
    if [[ "$before" == --env ]]; then
        compadd -- ${{(f)"$({_PROFILES})"}}
        return
    fi
    for ((i = 2; i < CURRENT; i++)); do
        case "${{words[i]}}" in
            --env) ((i++)) ;;
            -*) ;;
            *) verb="${{words[i]}}"; break ;;
        esac
    done
    if [[ -z "$verb" ]]; then
        local -a verbs=(
{verbs}
        )
        _describe verb verbs
        return
    fi
    case "$verb $before" in
{_cases(words, "said")}
    esac
    compadd -- ${{(s: :)said}} || _files
}}
compdef _sas sas
"""


_FISH_VERB = """\
function __sas_verb_is
    set -l words (commandline -opc)[2..]
    set -l verb ""
    while set -q words[1]; and test "$verb" = ""
        switch $words[1]
            case --env
                set -e words[1]
            case "-*"
            case "*"
                set verb $words[1]
        end
        set -e words[1]
    end
    test "$verb" = "$argv"
end
"""
"""The verb is the first word that is not an option: `rejected` in `sas rejected list`."""


def _fish(words: Sequence[Words]) -> str:
    profiles = f" -x -a {shlex.quote(f'({_PROFILES})')}"
    none = "-n __sas_verb_is"
    lines = [f"{_FISH_VERB}complete -c sas {none} -f", f"complete -c sas {none} -l env{profiles}"]
    for one in words:
        here = f"-n '__sas_verb_is {one.verb}'"
        about = shlex.quote(one.summary)
        lines.append(f"complete -c sas {none} -a {one.verb} -d {about}")
        if one.actions:
            lines.append(f"complete -c sas {here} -f -a {shlex.quote(' '.join(one.actions))}")
        of_options = dict(one.choices)
        for name, said in one.options:
            takes, about = " -r -F" if name in one.taking else "", shlex.quote(said)
            if name == "--env":
                takes = profiles
            elif name in of_options:
                takes = f" -x -a {shlex.quote(' '.join(of_options[name]))}"
            lines.append(f"complete -c sas {here} -l {name.removeprefix('--')}{takes} -d {about}")
    return "\n".join(lines) + "\n"


_SCRIPTS = {"bash": _bash, "fish": _fish, "zsh": _zsh}

VERBS = (
    Verb(
        "completion",
        "print a script with which your shell completes this command",
        DESCRIPTION,
        _add_arguments,
        _run,
    ),
)
