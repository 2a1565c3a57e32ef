"""Every row of the error catalogue that was collected from the field is answered on one page.

Number of the row: what people see, and what the page must say beside it. Codes of ACL alone are in
`test_acl_error_catalogue`, where each is provoked.
"""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text(encoding="utf-8")

ROWS: dict[str, tuple[tuple[str, str], ...]] = {
    "1": (("No module named 'acl'", "set_env.sh"),),
    "2": (
        ("libascendcl.so", "LD_LIBRARY_PATH"),
        ("libhccl.so", "/usr/local/Ascend/driver/lib64"),
        ("libmsprofiler.so", "set_env.sh"),
        ("libascend_dump.so", "service or container"),
    ),
    "3": (("static TLS block", "Import acl first"),),
    "4": (("undefined symbol", "ASCEND_OPP_PATH"),),
    "5": (("100039", "devlib"),),
    "6": (("148049", "set_env.sh"), ("E20002", "ASCEND_OPP_PATH")),
    "7": (("100002", "Harmless"),),
    "8": (("EH0003 / EH0004", "same one"), ("107000 from acl.init", "JSON")),
    "9": (("107001", "ASCEND_RT_VISIBLE_DEVICES"), ("EE1001 / EK0001", "renumbers")),
    "10": (("EE2002", "duplicate"),),
    "11": (("207004", "/dev/davinciN"), ("-8005", "devmm_svm")),
    "12": (("507033", "EL0004"), ("507033", "firmware")),
    "13": (("207000", "driver"), ("EE1015", "Raise the driver")),
    "14": (("107002", "set_context"),),
    "15": (("107003", "context"), ("107004", "context"), ("EE1010", "another device")),
    "16": (
        *((code, "Lower the number of pages") for code in ("207001", "207018", "245000")),
        ("EL0004", "Lower the number of pages"),
    ),
    "17": (
        ("200000", "host memory"),
        *((code, "host memory") for code in ("EH0010", "EE1013", "0x7020010")),
    ),
    "18": (("100003", "readable"), ("145002", "absolute path"), ("E13000", "rights")),
    "19": tuple(
        (code, "acl.get_soc_name()") for code in ("500001", "500002", "545001", "545005", "507008")
    ),
    "20": (("opp version of the model does not match", "Compile it again"),),
    "21": tuple((str(code), "incompatible CANN") for code in range(100012, 100017)),
    "22": (("507009", "virtual NPU"),),
    "23": (("segmentation fault in load_from_mem", "load_from_file"),),
    "24": (("E10041", "whole folder"),),
    "25": (("145000", "ascend_mbatch_shape_data"), ("E13025", "number or size")),
    "26": (("145012", "dims"), ("145013", "gears"), ("dynamic_batch_size not specified", "gears")),
    "27": (("100019", "Drop the dynamic-shape call"),),
    "28": (("200001", "310B use gears"), ("EH0011 / EE1005", "310B use gears")),
    "29": (("out i size is zero", "largest shape"),),
    "30": (("507011", "page ids"),),
    "31": (
        *((str(code), "device as lost") for code in (507015, 507035, *range(507042, 507046))),
        ("EZ2001", "restart the process"),
    ),
    "32": (
        *((code, "310B may need a reboot") for code in ("507014", "507034", "107020", "507046")),
        ("EE1002", "310B may need a reboot"),
    ),
    "33": (("507053", "stop using it"), ("507054", "stop using it")),
    "34": (("207008", "fewer gears"), ("207007", "fewer gears")),
    "35": (("results are zeros, NaN or garbage", "self-test"),),
    "36": (("E10001", "npu-smi info"),),
    "37": (("E10016", "inputs"),),
    "38": tuple(
        (code, "gear") for code in ("E10012", "E10018", "E10040", "E10045", "E10036", "E10037")
    ),
    "39": (("E10049", "rank"),),
    "40": tuple((code, "plugin") for code in ("E19010", "EZ9010", "E76002", "E16002", "E13010")),
    "41": (("E16005", "opset"),),
    "42": tuple((code, "dtype") for code in ("E14001", "EZ3002", "EZ3003")),
    "42b": tuple((code, "operator") for code in ("EZ0001", "EZ0007", "EZ1001", "E70001", "E70018")),
    "43": tuple((code, "--compile-jobs 1") for code in ("E20001", "E40021", "E22001")),
    "44": tuple((code, "PATH") for code in ("E40001", "E40002", "E40020", "E40024")),
    "45": (("ATC takes hours", "numactl"),),
    "46": (("E13023", "weights outside"), ("E13015", "weights outside"), ("2 GB", "external data")),
    "47": (("libatb.so", "nnal"),),
    "48": (("EI0006", "HCCL_CONNECT_TIMEOUT"), ("EI0002", "HCCL_EXEC_TIMEOUT"), ("507048", "rank")),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_is_answered(row):
    for sign, advice in ROWS[row]:
        lines = [line for line in PAGE.splitlines() if sign in line]
        assert lines, f"{sign} is not on the page"
        assert any(advice in line for line in lines), f"{sign}: no {advice!r} in {lines}"


def test_no_row_is_left_out():
    assert list(ROWS) == [*map(str, range(1, 43)), "42b", *map(str, range(43, 49))]
