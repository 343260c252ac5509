"""Distinguished names, compared with what Apache ZooKeeper 3.9.5 on Java 17 said."""

import ssl

import pytest

from metaq.coordination.standalone.distinguished_names import certificate_name, is_distinguished_name, subject_name

RECORDED: list[tuple[str, str]] = [
    ("300e310c300a06035504030c036d7131", "CN=mq1"),
    ("301e310e300c060355040a0c056d65746171310c300a06035504030c036d7131", "CN=mq1,O=metaq"),
    (
        "306d310b3009060355040613024445310f300d06035504080c0642617965726e3112301006035504070c094ec3bc726e6265726731133011060355040a0c0a412c2042202620436f2e310a3008060355040b0c0178310a3008060355040b0c0179310c300a06035504030c036d7131",
        "CN=mq1,OU=y,OU=x,O=A\\, B & Co.,L=Nürnberg,ST=Bayern,C=DE",
    ),
    (
        "302b3119300a06035504030c036d7131300b060355040b0c047465616d310e300c060355040a0c056d65746171",
        "O=metaq,CN=mq1+OU=team",
    ),
    ("301b3119300a06035504030c036d7131300b060355040b0c047465616d", "CN=mq1+OU=team"),
    (
        "303e310f300d06035504090c064d61696e203131173015060a0992268993f22c64011916076578616d706c6531123010060a0992268993f22c6401010c027531",
        "UID=u1,DC=example,STREET=Main 1",
    ),
    (
        "30243114301206092a864886f70d01090116056140622e63310c300a06035504030c036d7131",
        "CN=mq1,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        "304c310b3009060355040513023432310b3009060355040c0c024472310a300806035504040c0153310a3008060355042a0c0147310a3008060355042e130171310c300a06035504030c036d7131",
        "CN=mq1,2.5.4.46=#130171,2.5.4.42=#0c0147,2.5.4.4=#0c0153,2.5.4.12=#0c024472,2.5.4.5=#13023432",
    ),
    (
        "301f310b300906045504ce0f0c01713110300e06092b06010401868d1f010c0177",
        "1.3.6.1.4.1.99999.1=#0c0177,2.5.4.9999=#0c0171",
    ),
    ("300e310c300a06035504030c03206120", "CN=\\ a\\ "),
    ("30133111300f06035504030c082020612020622020", "CN=\\ \\ a  b\\ \\ "),
    ("300c310a300806035504030c0120", "CN=\\ "),
    ("300d310b300906035504030c022361", "CN=\\#a"),
    ("300e310c300a06035504030c03612362", "CN=a\\#b"),
    ("300e310c300a06035504030c03613d62", "CN=a\\=b"),
    ("3010310e300c06035504030c056122625c63", 'CN=a\\"b\\\\c'),
    ("30163114301206035504030c0b613c623e633b642b652c66", "CN=a\\<b\\>c\\;d\\+e\\,f"),
    ("300e310c300a06035504030c03612f62", "CN=a/b"),
    ("300e310c300a06035504030c03610062", "CN=a\\00b"),
    ("300f310d300b06035504030c04610a620d", "CN=a\nb\\\r"),
    ("300d310b300906035504030c020d61", "CN=\\\ra"),
    ("30143112301006035504030c09c3bce282acf09f9880", "CN=ü€😀"),
    ("30143112301006035504030c09612a625f6340642165", "CN=a*b_c@d!e"),
    ("300e310c300a06035504030c03096109", "CN=\ta\t"),
    ("300e310c300a060355040313036d7131", "CN=mq1"),
    ("300e310c300a060355040316036d7131", "CN=mq1"),
    ("3011310f300d06035504031e06006d00710031", "CN=\\00m\\00q\\001"),
    ("300e310c300a060355040314036d7131", "CN=mq1"),
    ("3011310f300d06035504031e06006d007100fc", "CN=\\00m\\00q\\00�"),
    ("300d310b3009060355040312023132", "CN=#12023132"),
    ("30173115301306035504031c0c0000006d0000007100000031", "CN=#1c0c0000006d0000007100000031"),
    (
        "304b3149304706035504030c4078787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878787878",
        "CN=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ),
    ("3000", ""),
    ("300e310c300a06035504030c03617f62", "CN=a\x7fb"),
    ("3010310e300c06035504030c05c2a061c2a0", "CN=\xa0a\xa0"),
    ("300e310c300a06035504030c032e2e2c", "CN=..\\,"),
    ("300f310d300b06035504030c042c20202c", "CN=\\,  \\,"),
    ("301a31183016060a0992268993f22c64011916086578612c6d706c65", "DC=exa\\,mple"),
]
"""Subjects of client certificates in DER, and the identity that whoAmI of Apache's server then had. (Its answer has two
surrogates for a character above U+FFFF.)
"""

ACCEPTED = [
    "CN=mq1",
    "CN=mq1,O=metaq",
    "cn=mq1",
    "O=metaq, CN=mq1",
    "CN = mq1",
    "CN=mq1;O=x",
    "CN=a+OU=b",
    "",
    "CN=",
    "1.2.3=#0c0161",
    "1.2.3=a",
    "OID.1.2.3=a",
    "CN=#0c0161",
    "CN=a=b",
    "CN=a\\,b",
    "CN=\\41b",
    'CN="a,b"',
    "CN=a#b",
    "CN= a",
    "EMAILADDRESS=a@b.c",
    "EMAIL=a",
    "SERIALNUMBER=1",
    "DC=a",
    "UID=a",
    "STREET=a",
    "T=a",
    "S=a",
    "ST=a",
    "SURNAME=a",
    "GIVENNAME=a",
    "INITIALS=a",
    "GENERATION=a",
    "DNQ=a",
    "DNQUALIFIER=a",
    "IP=a",
    "C=Germany",
    "C=DE",
    "CN=a\nb",
    "CN=ü",
    "CN=a\\ ",
    "CN=a/O=b",
    "CN=a O=b",
    "CN=*",
    "1.2=a",
    "DC=ü",
    "EMAILADDRESS=ü",
    "CN=\\ a",
    "OU=",
    "CN=\\C3\\BC",
    "CN=a\x00b",
]
REFUSED = [
    "mq1",
    "CN",
    "=x",
    "CN=a,",
    "CN=a,,O=b",
    "XX=a",
    "CN=#zz",
    "CN=#",
    "CN=a\\",
    "CN=\\zz",
    'CN="a',
    "CN=a<b",
    "E=a",
    "CN=a+",
    "+CN=a",
    ",CN=a",
    "/CN=a",
    'CN=a"b',
    'CN="a"b',
    "anyone",
    "1=a",
    "3.1=a",
    "1.40.1=a",
    "  ",
    "sn=a",
    "TITLE=a",
    "CN=a;",
    "1.2.840.113549.1.9.1=#1605614062 ",
]
"""Texts that Apache's server accepted and refused in an ACL of the scheme x509."""


@pytest.mark.parametrize(("subject", "name"), RECORDED)
def test_a_name_is_written_as_java_writes_it(subject: str, name: str):
    assert subject_name(bytes.fromhex(subject)) == name


@pytest.mark.parametrize("text", ACCEPTED + REFUSED)
def test_an_acl_may_contain_the_names_that_java_accepts(text: str):
    assert is_distinguished_name(text) is (text in ACCEPTED)


def test_the_name_is_the_subjects_and_not_the_issuers(pki):
    certificate = ssl.PEM_cert_to_DER_cert((pki / "app" / "client.pem").read_text())
    assert certificate_name(certificate) == "CN=app"


def test_a_certificate_that_is_cut_off_has_no_name(pki):
    certificate = ssl.PEM_cert_to_DER_cert((pki / "app" / "client.pem").read_text())
    for length in range(len(certificate)):
        with pytest.raises(ValueError, match="at byte"):
            certificate_name(certificate[:length])


@pytest.mark.parametrize("text", ["CN=a" * 300, "CN=" + " " * 998, "2." + "1" * 999])
def test_a_name_that_is_too_long_is_refused(text: str):
    assert not is_distinguished_name(text)
