"""Idioms of keyed state: each is the body of a process function, with one kind of state."""

from tests.programs.model import Stream


def state_idioms(
    stream: Stream, kind: str, t: str, v: str
) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """Bodies of keyed process functions: text, value of the result, its kind, tags."""
    value = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_state(ValueStateDescriptor("s", {kind}))\n'
    )
    listed = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_list_state(ListStateDescriptor("s", {kind}))\n'
    )
    mapped = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_map_state(MapStateDescriptor("s", Types.LONG(), {kind}))\n'
    )
    lists = (
        "    def open(self, ctx):\n"
        f'        self.s = ctx.get_state(ValueStateDescriptor("s", Types.LIST({kind})))\n'
    )
    pair = (
        "    def open(self, ctx):\n"
        "        self.s = ctx.get_state(ValueStateDescriptor("
        '"s", Types.TUPLE([Types.LONG(), Types.LONG()])))\n'
    )
    process = "    def process_element(self, r, ctx):\n"
    idioms = [
        (
            f"{value}{process}        before = self.s.value()\n        self.s.update({v})\n"
            "        yield {tuple}\n",
            "before",
            "any",
            ("value-state", "typed-state"),
        ),
        (
            f"{listed}{process}        self.s.add({v})\n        yield {{tuple}}\n",
            "self.s.get()",
            "any",
            ("list-state", "typed-state"),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        seen.append({v})\n"
            "        self.s.update(seen)\n        yield {tuple}\n",
            "seen",
            "any",
            ("aliased-state",),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        seen.append({v})\n"
            "        self.s.update(seen)\n        yield {tuple}\n",
            "list(seen)",
            "any",
            ("typed-state",),
        ),
        (
            f"{lists}{process}        seen = self.s.value() or []\n        self.s.update(seen)\n"
            f"        seen.append({v})\n        self.s.update(seen + [{v}])\n"
            "        seen.clear()\n        yield {tuple}\n",
            "len(self.s.value())",
            "int",
            ("typed-state", "changed-after-put"),
        ),
        (
            f"{mapped}{process}        self.s.put({t} % 3, {v})\n        yield {{tuple}}\n",
            "sorted(self.s.items())[0]",
            "any",
            ("map-state", "typed-state"),
        ),
        (
            f"{mapped}{process}        key = {t} // 100 % 4\n"
            "        if self.s.contains(key):\n            self.s.remove(key)\n"
            f"        else:\n            self.s.put(key, {v})\n        yield {{tuple}}\n",
            "sorted(self.s.keys())",
            "ints",
            ("map-state",),
        ),
        (
            f"{pair}{process}        count = self.s.value() or [0, 0]\n"
            "        count = count if isinstance(count, list) else list(count)\n"
            "        count[0] += 1\n        count[1] += len(count)\n        self.s.update(count)\n"
            "        yield {tuple}\n",
            "tuple(count)",
            "any",
            ("tuple-state",),
        ),
        (
            # The list is in state from its first record on, and is changed there.
            f"{pair}{process}        count = self.s.value()\n"
            "        if not isinstance(count, list):\n"
            "            count = list(count or (0, 0))\n            self.s.update(count)\n"
            "        count[0] += 1\n        self.s.update(count)\n"
            "        yield {tuple}\n",
            "count[0]",
            "int",
            ("torn-state",),
        ),
        (
            f"{pair}{process}        self.s.update([{t}, 1])\n        yield {{tuple}}\n",
            "self.s.value()",
            "any",
            ("tuple-state", "typed-state"),
        ),
        (
            "    def open(self, ctx):\n"
            '        self.s = ctx.get_reducing_state(ReducingStateDescriptor("s", '
            "lambda a, b: a + b, Types.LIST(Types.LONG())))\n"
            f"{process}        self.s.add([{t}])\n        yield {{tuple}}\n",
            "self.s.get()",
            "ints",
            ("reducing-state", "aliased-state"),
        ),
        (
            "    def open(self, ctx):\n"
            "        class Gather(AggregateFunction):\n"
            "            def create_accumulator(self):\n                return []\n"
            "            def add(self, value, acc):\n"
            "                acc.append(value)\n                return acc\n"
            "            def get_result(self, acc):\n                return len(acc)\n"
            "            def merge(self, one, other):\n                return one + other\n"
            '        self.s = ctx.get_aggregating_state(AggregatingStateDescriptor("s", Gather(), '
            "Types.LIST(Types.LONG())))\n"
            f"{process}        self.s.add({t})\n        yield {{tuple}}\n",
            "self.s.get()",
            "int",
            ("aggregating-state", "in-place"),
        ),
        (
            f"{listed}{process}        kept = self.s.get()\n        if len(kept) > 3:\n"
            "            self.s.clear()\n            kept = []\n"
            f"        self.s.update(kept + [{v}])\n        yield {{tuple}}\n",
            "len(self.s.get())",
            "int",
            ("list-state",),
        ),
    ]
    nested = value.replace(kind, f"Types.MAP(Types.STRING(), Types.LIST({kind}))")
    named = value.replace(kind, f'Types.ROW_NAMED(["n", "v"], [Types.LONG(), {kind}])')
    idioms += [
        (
            f"{nested}{process}        kept = self.s.value() or {{}}\n"
            f'        kept.setdefault("a", []).append({v})\n        self.s.update(kept)\n'
            "        yield {tuple}\n",
            "kept",
            "any",
            ("aliased-state",),
        ),
        (
            f'{named}{process}        self.s.update({{"n": {t}, "v": {v}}})\n'
            "        yield {tuple}\n",
            "self.s.value()",
            "any",
            ("typed-state", "row-state"),
        ),
    ]
    if stream.value in ("int", "float"):
        single = value.replace(kind, "Types.FLOAT()")
        idioms.append(
            (
                f"{single}{process}        self.s.update({v} * 0.1)\n        yield {{tuple}}\n",
                "self.s.value()",
                "any",
                ("typed-state", "float32"),
            )
        )
    if stream.value == "single":
        idioms = [(a, b, c, (*d, "float32")) for a, b, c, d in idioms]
    return idioms
